"""Readers of stored runs: analyses and reports. The trainer never imports this folder."""
