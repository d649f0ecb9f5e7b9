"""A page as tests read it."""

import html.parser

VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(html.parser.HTMLParser):
    """A parsed page: elements as (tag, attributes, text), text without tags, and whether every
    tag is closed in order.
    """

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.elements = []
        self.texts = []
        self.balanced = True
        self.feed(text)
        self.close()
        self.balanced &= not self.open

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append((tag, len(self.elements) - 1))

    def handle_startendtag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])

    def handle_endtag(self, tag):
        if not self.open or self.open[-1][0] != tag:
            self.balanced = False
        else:
            self.open.pop()

    def handle_data(self, data):
        for _, position in self.open:
            self.elements[position][2] += data
        if not any(tag in ("style", "script") for tag, _ in self.open):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def find(self, tag, **attributes):
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [
            e
            for e in self.elements
            if e[0] == tag
            and all(value in (e[1].get(name) or "").split() for name, value in wanted.items())
        ]

    def shown_queries(self):
        return [int(e[1]["id"][1:]) for e in self.find("li", class_="query")]

    def wrong_queries(self):
        return [int(e[1]["id"][1:]) for e in self.find("li", class_="wrong")]
