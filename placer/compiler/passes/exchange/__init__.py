"""How nodes exchange gradients, parameters and rows of tables."""
