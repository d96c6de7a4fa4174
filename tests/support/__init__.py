"""What the tests of several packages share, and authors of plug-ins do not need."""
