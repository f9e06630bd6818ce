"""MiniRay side by side with its peers: one file for each peer behind the interface of peer.py."""
