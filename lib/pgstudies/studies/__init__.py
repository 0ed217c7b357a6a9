"""Running a study's notebook: parameters, kernel, what is kept of it."""
