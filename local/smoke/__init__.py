"""`echoproof smoke`: what only a running deployment can show, checked from outside, a verdict each."""
