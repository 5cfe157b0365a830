"""The fixed features that the sub-networks are trained on [subnetworks]."""
