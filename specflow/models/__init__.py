"""Networks: targets, drafts, their weights and their key-value pools."""
