"""Tables as a whole: created and dropped; folders of tables."""
