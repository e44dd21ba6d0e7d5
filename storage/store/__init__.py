"""Object stores: the only place where storage reads or writes bytes. One module per kind of store."""
