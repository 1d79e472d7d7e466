//! Tokens into the syntax tree, by recursive descent, line by line.

use crate::error::{ProgramError, Rule, Span, fault};
use crate::lexer::{Token, tokens};
use crate::syntax::{Attr, Bound, Decl, Expr, Item, Line, Named, Program, Range};
use crate::{Axis, Dim, Kind};

/// Nesting of expressions that the parser follows; authored programs need four.
const MAX_DEPTH: u32 = 64;

/// Sums and products of one line. Each makes the tree one deeper, and what walks a tree does so by recursion.
const MAX_SIGNS: u32 = 256;

impl Program {
    /// Reads a program. Printing the result gives the same text, up to spacing and the way numbers are written.
    ///
    /// # Errors
    /// [`Rule::Syntax`], or [`Rule::DuplicateName`] of a parameter, with the place.
    pub fn parse(text: &str) -> Result<Program, ProgramError> {
        let mut lines = text.lines().zip(1u32..).skip_while(|(line, _)| line.trim().is_empty());
        let Some((head, number)) = lines.next() else {
            return Err(fault(Rule::Syntax, Span::default(), "an empty text is no program"));
        };
        let mut program = header(&mut Cursor::of(head, number)?)?;
        for (line, number) in lines {
            program.lines.push(Cursor::of(line, number)?.line()?);
        }
        while program.lines.last().is_some_and(|l| l.item.is_none() && l.comment.is_none()) {
            program.lines.pop();
        }
        Ok(program)
    }
}

fn header(c: &mut Cursor) -> Result<Program, ProgramError> {
    c.keyword("program")?;
    let name = c.name("the program's name")?.name;
    let mut params: Vec<(String, u64)> = Vec::new();
    while let Token::Word(_) = c.peek() {
        let key = c.name("a parameter")?;
        if params.iter().any(|(n, _)| *n == key.name) {
            return Err(fault(
                Rule::DuplicateName,
                key.span,
                format!("parameter `{}` is given twice", key.name),
            ));
        }
        c.sign("=")?;
        params.push((key.name, c.integer()?));
    }
    Ok(Program { name, params, comment: c.line_end()?, lines: Vec::new() })
}

/// Whether a number is a size: whole, and small enough that the text and the number are one.
fn whole(v: f64) -> bool {
    v >= 0.0 && v.fract() == 0.0 && v < 9e15
}

/// A place within one line's tokens.
struct Cursor {
    tokens: Vec<(Token, Span)>,
    at: usize,
    depth: u32,
    signs: u32,
}

impl Cursor {
    fn of(line: &str, number: u32) -> Result<Cursor, ProgramError> {
        Ok(Cursor { tokens: tokens(line, number)?, at: 0, depth: 0, signs: 0 })
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn ahead(&self, by: usize) -> &Token {
        &self.tokens[(self.at + by).min(self.tokens.len() - 1)].0
    }

    fn span(&self) -> Span {
        self.tokens[self.at].1
    }

    fn next(&mut self) -> Token {
        let token = std::mem::replace(&mut self.tokens[self.at].0, Token::End);
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn wanted<T>(&self, what: &str) -> Result<T, ProgramError> {
        Err(fault(Rule::Syntax, self.span(), format!("wanted {what}, found {}", self.peek().describe())))
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(s) if *s == sign)
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = self.is_sign(sign);
        if found {
            self.next();
        }
        found
    }

    fn sign(&mut self, sign: &str) -> Result<(), ProgramError> {
        if self.take(sign) { Ok(()) } else { self.wanted(&format!("`{sign}`")) }
    }

    fn keyword(&mut self, word: &str) -> Result<(), ProgramError> {
        match self.peek() {
            Token::Word(w) if w == word => {
                self.next();
                Ok(())
            }
            _ => self.wanted(&format!("`{word}`")),
        }
    }

    fn name(&mut self, what: &str) -> Result<Named, ProgramError> {
        let span = self.span();
        match self.peek() {
            Token::Word(_) => match self.next() {
                Token::Word(name) => Ok(Named { name, span }),
                _ => self.wanted(what),
            },
            _ => self.wanted(what),
        }
    }

    fn integer(&mut self) -> Result<u64, ProgramError> {
        match *self.peek() {
            Token::Number(v) if whole(v) => {
                self.next();
                Ok(v as u64)
            }
            _ => self.wanted("a whole number"),
        }
    }

    fn line_end(&mut self) -> Result<Option<String>, ProgramError> {
        let comment = match self.peek().clone() {
            Token::Comment(text) => {
                self.next();
                Some(text)
            }
            _ => None,
        };
        if *self.peek() == Token::End { Ok(comment) } else { self.wanted("the end of the line") }
    }

    fn line(&mut self) -> Result<Line, ProgramError> {
        let item = match (self.peek(), self.ahead(1)) {
            (Token::End | Token::Comment(_), _) => None,
            (Token::Word(w), _) if w == "return" => {
                let span = self.span();
                self.next();
                Some(Item::Return(span, self.expr()?))
            }
            (Token::Word(_), Token::Sign(":")) => Some(self.decls()?),
            (Token::Word(_), _) => Some(self.statement()?),
            _ => return self.wanted("a declaration, a statement or `return`"),
        };
        Ok(Line { item, comment: self.line_end()? })
    }

    fn decls(&mut self) -> Result<Item, ProgramError> {
        let mut decls = Vec::new();
        while let Token::Word(_) = self.peek() {
            let name = self.name("a name")?;
            self.sign(":")?;
            let kind = match self.peek() {
                Token::Word(w) if w == "index" => {
                    self.next();
                    Kind::Index
                }
                _ => Kind::Float,
            };
            let axes = if kind == Kind::Float || self.is_sign("[") { self.axes()? } else { Vec::new() };
            let weight = if self.take("@") {
                let Token::Text(weight) = self.peek().clone() else {
                    return self.wanted("a weight's name in quotes");
                };
                self.next();
                Some(weight)
            } else {
                None
            };
            decls.push(Decl { name, kind, axes, weight });
        }
        Ok(Item::Decls(decls))
    }

    fn axes(&mut self) -> Result<Vec<Axis>, ProgramError> {
        self.sign("[")?;
        let mut axes = Vec::new();
        loop {
            let named =
                matches!((self.peek(), self.ahead(1)), (Token::Word(_), Token::Word(_) | Token::Number(_)));
            let name = if named { Some(self.name("an axis")?.name) } else { None };
            let size = match self.peek() {
                Token::Word(w) if w == "n" => {
                    self.next();
                    Dim::N
                }
                _ => Dim::Fixed(self.integer()?),
            };
            axes.push(Axis { name, size });
            if self.take("]") {
                return Ok(axes);
            }
            self.sign(",")?;
        }
    }

    fn statement(&mut self) -> Result<Item, ProgramError> {
        let name = self.name("a name")?;
        if self.is_sign("[") {
            let range = self.range()?;
            self.sign("=")?;
            return Ok(Item::Write(name, range, self.expr()?));
        }
        if self.take(",") {
            let state = self.name("a state")?;
            let range = self.range()?;
            self.sign("=")?;
            return Ok(Item::Update(name, state, range, self.expr()?));
        }
        self.sign("=")?;
        Ok(Item::Let(name, self.expr()?))
    }

    fn range(&mut self) -> Result<Range, ProgramError> {
        self.sign("[")?;
        let from = if self.is_sign("..") { None } else { Some(self.bound()?) };
        self.sign("..")?;
        let to = if self.is_sign("]") { None } else { Some(self.bound()?) };
        self.sign("]")?;
        Ok(Range { from, to })
    }

    fn bound(&mut self) -> Result<Bound, ProgramError> {
        let mut bound = if self.take("(") {
            let inner = self.sum()?;
            self.sign(")")?;
            inner
        } else {
            self.sum()?
        };
        if self.take("/") {
            let per = self.integer()?;
            if per == 0 {
                return Err(fault(Rule::Syntax, self.span(), "a bound is divided by 0"));
            }
            bound.per = Some(per);
        }
        Ok(bound)
    }

    fn sum(&mut self) -> Result<Bound, ProgramError> {
        let mut bound = Bound::default();
        let mut number = false;
        loop {
            match self.peek() {
                Token::Word(w) if w == "pos" && !bound.pos => bound.pos = true,
                Token::Word(w) if w == "n" && !bound.n => bound.n = true,
                Token::Number(v) if !number && whole(*v) => (bound.offset, number) = (*v as u64, true),
                _ => return self.wanted("`pos`, `n` or a whole number, each at most once"),
            }
            self.next();
            if self.take("-") {
                bound.back = Some(self.integer()?);
                return Ok(bound);
            }
            if !self.take("+") {
                return Ok(bound);
            }
        }
    }

    fn expr(&mut self) -> Result<Expr, ProgramError> {
        self.infix("+", "add", |c| c.infix("*", "mul", Cursor::term))
    }

    /// Operands joined by `sign`, from the left.
    fn infix(
        &mut self,
        sign: &str,
        op: &str,
        operand: impl Fn(&mut Cursor) -> Result<Expr, ProgramError>,
    ) -> Result<Expr, ProgramError> {
        let mut left = operand(self)?;
        while self.is_sign(sign) {
            self.signs += 1;
            if self.signs > MAX_SIGNS {
                let message = format!("more than {MAX_SIGNS} sums and products in a line");
                return Err(fault(Rule::Syntax, self.span(), message));
            }
            let name = Named { name: op.into(), span: self.span() };
            self.next();
            left = Expr::Call(name, vec![left, operand(self)?], Vec::new());
        }
        Ok(left)
    }

    fn term(&mut self) -> Result<Expr, ProgramError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(fault(
                Rule::Syntax,
                self.span(),
                format!("more than {MAX_DEPTH} expressions within each other"),
            ));
        }
        let term = self.term_inner();
        self.depth -= 1;
        term
    }

    fn term_inner(&mut self) -> Result<Expr, ProgramError> {
        if self.take("(") {
            let inner = self.expr()?;
            self.sign(")")?;
            return Ok(inner);
        }
        let name = self.name("a value or an operation")?;
        if self.is_sign("[") {
            let range = self.range()?;
            return Ok(Expr::Rows(name, range));
        }
        if !self.take("(") {
            return Ok(Expr::Name(name));
        }
        let (mut args, mut attrs) = (Vec::new(), Vec::new());
        while !self.take(")") {
            if !args.is_empty() || !attrs.is_empty() {
                self.sign(",")?;
            }
            if matches!((self.peek(), self.ahead(1)), (Token::Word(_), Token::Sign(":"))) {
                let key = self.name("an attribute")?;
                self.sign(":")?;
                attrs.push((key, self.attr()?));
            } else if attrs.is_empty() {
                args.push(self.expr()?);
            } else {
                return self.wanted("an attribute: operands come first");
            }
        }
        Ok(Expr::Call(name, args, attrs))
    }

    fn attr(&mut self) -> Result<Attr, ProgramError> {
        match self.peek().clone() {
            Token::Number(v) => {
                self.next();
                Ok(Attr::Number(v))
            }
            Token::Word(w) => {
                self.next();
                Ok(Attr::Word(w))
            }
            Token::Sign("[") => {
                self.next();
                self.list()
            }
            _ => self.wanted("a number, a word or a list of numbers"),
        }
    }

    fn list(&mut self) -> Result<Attr, ProgramError> {
        let mut numbers = Vec::new();
        loop {
            match *self.peek() {
                Token::Number(v) => numbers.push(v),
                _ => return self.wanted("a number"),
            }
            self.next();
            if self.take("]") {
                return Ok(Attr::List(numbers));
            }
            self.sign(",")?;
        }
    }
}
