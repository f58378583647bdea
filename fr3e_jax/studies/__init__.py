"""Readers of stored runs: analyses, reports, and the laboratory. The trainer never imports this folder."""
