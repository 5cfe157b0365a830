import runpy
from pathlib import Path

from hyperribbon.recording.trajectory import Trajectory

EXAMPLE = Path(__file__).parents[2] / "examples" / "record_training.py"


def test_the_recording_example_runs_and_can_be_run_again(tmp_path, capsys):
    main = runpy.run_path(str(EXAMPLE))["main"]
    main(tmp_path / "run")
    printed = capsys.readouterr().out
    assert "7 records in" in printed
    trajectory = Trajectory.open(tmp_path / "run")
    assert trajectory.epochs.tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3]
    assert (trajectory.metric("hessian.eigenvalues") > 0).all()
    main(tmp_path / "run")
    again = capsys.readouterr().out
    assert again.splitlines()[:8] == printed.splitlines()[:8]
