"""Jobs on Kubernetes, and a cluster of processes that runs them."""
