"""Tests that start processes of their own; test_stateful_runs.py runs those under host/ in one."""
