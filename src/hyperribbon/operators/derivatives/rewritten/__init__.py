"""Operations that are computed in another way, so that they can be differentiated twice."""
