// The cluster layer begins here.
