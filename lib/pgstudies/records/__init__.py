"""Records of runs, written block by block and read back as frames."""
