"""Pure decisions on which sample comes when, and on which rank."""
