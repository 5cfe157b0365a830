"""What is asked of torch beyond its public names, with and without an answer of its own."""

import torch

from hyperribbon.core.devices import torch_private


def test_transforms_and_hooks_are_noticed():
    seen = []
    torch.vmap(lambda x: seen.append(torch_private.is_transformed()) or x)(torch.ones(2))
    assert seen == [True] and not torch_private.is_transformed()
    with torch.autograd.graph.save_on_cpu():
        assert torch_private.keeps_other_tensors()
    assert not torch_private.keeps_other_tensors()


def test_hooks_are_counted_where_torch_cannot_be_asked(monkeypatch):
    class Hooks:
        def __enter__(self):
            raise ValueError

        def __exit__(self, *error):
            return None

    class Good(Hooks):
        def __enter__(self):
            return self

    for kind, expected in ((Good, 1), (Hooks, 0)):
        own = torch_private._Depth()
        torch_private._count_hooks(kind, own)
        monkeypatch.setattr(torch_private, "_ask_hooks", None)
        monkeypatch.setattr(torch_private, "_own_hooks", own)
        try:
            with kind():
                assert torch_private.keeps_other_tensors()
                assert own.depth == expected
        except ValueError:
            assert expected == 0
        assert not torch_private.keeps_other_tensors()


def test_onednn_comes_back_after_an_error():
    before = torch._C._get_mkldnn_enabled()
    try:
        with torch_private.without_onednn():
            assert not torch._C._get_mkldnn_enabled()
            raise ValueError
    except ValueError:
        pass
    assert torch._C._get_mkldnn_enabled() == before
