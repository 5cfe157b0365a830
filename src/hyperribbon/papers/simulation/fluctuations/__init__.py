"""Many runs of SGD at once on linear networks [fluctuations]."""
