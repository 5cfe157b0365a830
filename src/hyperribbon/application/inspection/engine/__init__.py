"""How an inspection runs: subject, plan, clock, rounds, findings."""
