"""Runs that faults befall at random moments, and that go on each time: in the end nothing may be missing or doubled."""
