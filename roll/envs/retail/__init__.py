"""Customer service: shop rules, a database of orders, users and products, and a customer with a request."""
