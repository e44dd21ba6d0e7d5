"""Services: work on a table as a whole, beside its writers and readers. Each module is a service or a part of one."""
