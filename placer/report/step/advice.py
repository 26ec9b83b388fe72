"""x"""
def advice_of(*args): return []
