"""Two servers, one question: measured block by block, with guards."""
