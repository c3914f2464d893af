"""The library of recorded runs, and the factory that makes them."""
