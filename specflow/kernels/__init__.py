"""Operations on tensors and token histories: a plain reference each, a fast twin where it pays."""
