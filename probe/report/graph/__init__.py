"""The data flow of a model as it ran: who made what each module was given, and who used what it returned."""
