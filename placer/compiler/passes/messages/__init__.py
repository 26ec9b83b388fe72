"""The passes that insert conversions, copies and messages."""
