"""The served port: TLS, delegated authentication and authorization."""
