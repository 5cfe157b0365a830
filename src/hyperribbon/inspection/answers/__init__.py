"""An inspection in at most six sentences: the number, what it means, what is usual, what to do.

Names load on first use: a stored inspection is read without torch.
"""

from typing import TYPE_CHECKING

from hyperribbon.core.first_use import on_first_use

if TYPE_CHECKING:
    from hyperribbon.inspection.answers.reference import Reference, kind_of
    from hyperribbon.inspection.answers.sentences import Answer, answers
    from hyperribbon.inspection.answers.terms import TERMS, Term

__all__ = ["TERMS", "Answer", "Reference", "Term", "answers", "kind_of"]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "reference": ("Reference", "kind_of"),
        "sentences": ("Answer", "answers"),
        "terms": ("TERMS", "Term"),
    },
)
