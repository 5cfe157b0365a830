"""The explorer without a browser: what its pages ask, and what others might."""

import json

import pytest

from hyperribbon.application.explorer.app import create_app

TOKEN = "the token of the tests"


class Client:
    """Asks callbacks of the explorer as a page does, or as a page never would."""

    def __init__(self, store, base="http://127.0.0.1:8050", enter=True):
        self.app, self.base = create_app(store, token=TOKEN), base
        self.flask = self.app.server.test_client()
        if enter:
            assert self.get(f"/?token={TOKEN}").status_code == 302

    def key(self, output):
        (found,) = [k for k in self.app.callback_map if output in k]
        return found

    def body(self, output, changed, values):
        """Return the request of the callback that has an output, with values by component id."""
        key = self.key(output)
        entry = self.app.callback_map[key]

        def given(parts):
            return [
                {**part, "value": values.get(f"{part['id']}.{part['property']}")} for part in parts
            ]

        outputs = [
            dict(zip(("id", "property"), part.rsplit(".", 1), strict=True))
            for part in key.strip(".").split("...")
        ]
        return {
            "output": key,
            "outputs": outputs if key.startswith("..") else outputs[0],
            "inputs": given(entry["inputs"]),
            "state": given(entry["state"]),
            "changedPropIds": [changed],
        }

    def ask(self, output, changed="", values=None, **headers):
        return self.post(self.body(output, changed, values or {}), **headers)

    def post(self, body, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.flask.post(
            "/_dash-update-component",
            data=body if isinstance(body, str | bytes) else json.dumps(body),
            content_type="application/json",
            base_url=self.base,
            headers=named,
        )

    def visitor(self):
        """Return the name that the page gives to a new visit."""
        return self.visitor_in(self.get("/_dash-layout").json)

    @staticmethod
    def visitor_in(layout):
        """Return the name of a visit in a page's layout."""
        (store,) = [c for c in layout["props"]["children"] if c["props"].get("id") == "visitor"]
        return store["props"]["data"]

    def get(self, path, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.flask.get(path, base_url=self.base, headers=named)


@pytest.fixture
def client(tmp_path):
    return Client(tmp_path)


@pytest.fixture
def client_of():
    """Return the client of a store, with the token unless `enter` is False."""
    return Client
