"""A shop in text, over a catalogue given as a file: its products, search, pages, reward, and the environment."""
