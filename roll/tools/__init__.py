"""Tools that a policy may call: schemas, and what runs them for one attempt. What a call is worth is not known here."""
