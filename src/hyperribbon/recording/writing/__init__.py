"""How a recording reaches the disk: in the background, forecast, with its status."""
