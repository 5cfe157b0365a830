"""What is asked of torch beyond its public names, with and without an answer of its own."""

import torch

from hyperribbon.core.devices import torch_inside


def test_softmax_of_hidden_rows_with_and_without_the_kernel(monkeypatch):
    torch.manual_seed(0)
    scores = torch.randn(3, 4, dtype=torch.float64)
    scores[1, 2] = scores[2] = float("-inf")
    scores.requires_grad_()
    results = []
    monkeypatch.setattr(torch_inside, "_hidden_rows_are_nan", False)
    for has_kernel in (True, False):
        if not has_kernel:
            monkeypatch.delattr(torch, "_safe_softmax", raising=False)  # 2.4 has none
        shares = torch_inside.safe_softmax(scores)
        slope = torch.autograd.grad((shares**2).sum(), scores)[0]
        results.append((shares, slope))
    torch.testing.assert_close(results[0], results[1])
    assert not results[1][0][2].any()
    monkeypatch.setattr(torch_inside, "_hidden_rows_are_nan", True)
    shares = torch_inside.safe_softmax(scores)
    torch.testing.assert_close(shares[:2], results[0][0][:2])
    assert shares[2].isnan().all()


def test_transforms_and_hooks_are_noticed():
    seen = []
    torch.vmap(lambda x: seen.append(torch_inside.is_transformed()) or x)(torch.ones(2))
    assert seen == [True] and not torch_inside.is_transformed()
    with torch.autograd.graph.save_on_cpu():
        assert torch_inside.keeps_other_tensors()
    assert not torch_inside.keeps_other_tensors()


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
        own = torch_inside._Depth()
        torch_inside._count_hooks(kind, own)
        monkeypatch.setattr(torch_inside, "_ask_hooks", None)
        monkeypatch.setattr(torch_inside, "_own_hooks", own)
        try:
            with kind():
                assert torch_inside.keeps_other_tensors()
                assert own.depth == expected
        except ValueError:
            assert expected == 0
        assert not torch_inside.keeps_other_tensors()


def test_onednn_comes_back_after_an_error():
    before = torch._C._get_mkldnn_enabled()
    try:
        with torch_inside.without_onednn():
            assert not torch._C._get_mkldnn_enabled()
            raise ValueError
    except ValueError:
        pass
    assert torch._C._get_mkldnn_enabled() == before
