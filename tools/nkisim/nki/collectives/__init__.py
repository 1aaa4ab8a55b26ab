"""`nki.collectives`: communication between ranks. Nothing of it is simulated yet."""
