"""An inspection in at most six sentences: the number, what it means, what is usual, what to do."""

from hyperribbon.inspection.answers.reference import Reference, kind_of
from hyperribbon.inspection.answers.sentences import Answer, answers
from hyperribbon.inspection.answers.terms import TERMS, Term

__all__ = ["TERMS", "Answer", "Reference", "Term", "answers", "kind_of"]
