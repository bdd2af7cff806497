"""Parts of other libraries over this one: a file a library, which has to be installed beside."""
