"""The passes that give ops and parameters their places."""
