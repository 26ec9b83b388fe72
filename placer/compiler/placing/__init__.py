"""Predicts the time of a step for a placement, from measured or declared costs."""
