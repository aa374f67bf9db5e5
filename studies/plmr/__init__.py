"""`meshrt plmr`: does a program keep to the machine, whatever its size?"""
