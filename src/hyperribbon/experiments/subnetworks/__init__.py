"""Critical sub-networks and the anisotropy they cause."""
