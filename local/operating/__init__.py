"""What an operator does on the command line: look at the review queue, decide, pause, see the pulse."""
