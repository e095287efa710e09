"""Where attempts run: every engine starts and ends them as told and reports what became of them."""
