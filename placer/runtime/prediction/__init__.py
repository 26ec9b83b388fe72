"""A prediction, from the request to the file of its rows."""
