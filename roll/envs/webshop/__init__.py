"""WebShop: product search, pages and reward, over a catalogue in a file."""
