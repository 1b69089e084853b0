"""Customer service: a policy, a database of orders, users and products, and a customer who wants something."""
