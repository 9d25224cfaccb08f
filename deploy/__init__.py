"""What runs the server beside others: containers, a cluster, dashboards and alerts."""
