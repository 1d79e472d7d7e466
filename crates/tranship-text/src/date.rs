//! A day that someone else read from a clock, written the way templates ask for it.

use std::fmt::Write;

use crate::TextError;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A day of the Gregorian calendar and a time of that day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    year: u16,
    month: u8,
    day: u8,
    seconds: u32,
}

impl Date {
    /// Midnight of a day; months and days count from 1.
    ///
    /// # Errors
    /// A day that the calendar does not have.
    pub fn new(year: u16, month: u8, day: u8) -> Result<Self, TextError> {
        if !(1..=12).contains(&month) || !(1..=month_days(year, month)).contains(&day) {
            return Err(TextError::Date { found: format!("{year:04}-{month:02}-{day:02}") });
        }
        Ok(Date { year, month, day, seconds: 0 })
    }

    /// The day and time that lie `seconds` after the start of 1970, without leap seconds.
    ///
    /// # Errors
    /// A time after the year 9999.
    pub fn from_unix(seconds: u64) -> Result<Self, TextError> {
        let mut days = seconds / 86_400;
        let mut year: u16 = 1970;
        while days >= u64::from(year_days(year)) {
            days -= u64::from(year_days(year));
            year += 1;
            if year > 9999 {
                return Err(TextError::Date { found: format!("{seconds} s after 1970") });
            }
        }
        let mut month = 1;
        while days >= u64::from(month_days(year, month)) {
            days -= u64::from(month_days(year, month));
            month += 1;
        }
        Ok(Date { year, month, day: days as u8 + 1, seconds: (seconds % 86_400) as u32 })
    }

    fn day_of_year(self) -> u32 {
        (1..self.month).map(|m| u32::from(month_days(self.year, m))).sum::<u32>() + u32::from(self.day)
    }

    /// 0 is Sunday.
    fn weekday(self) -> usize {
        let before = u32::from(self.year) + 400 - 1;
        let days = before * 365 + before / 4 - before / 100 + before / 400 + self.day_of_year();
        (days % 7) as usize
    }

    /// Python's `strftime` in the C locale, for the directives that name a day or a time of it: `%Y %y %m %d %e %B %b %A
    /// %a %j %H %I %M %S %p %%`, `%-d` and its like without padding. Another directive stays as it is.
    pub fn format(self, pattern: &str) -> String {
        let mut out = String::new();
        let mut rest = pattern.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let (flag, directive) = match rest.next() {
                Some('-') => ("-", rest.next()),
                other => ("", other),
            };
            match directive.and_then(|d| self.directive(d, flag == "-")) {
                Some(text) => out.push_str(&text),
                None => {
                    out.push('%');
                    out.push_str(flag);
                    out.extend(directive);
                }
            }
        }
        out
    }

    fn directive(self, directive: char, bare: bool) -> Option<String> {
        let hour = self.seconds / 3600;
        let padded = |value: u32, width: usize| {
            let mut text = String::new();
            let width = if bare { 0 } else { width };
            // Writing to a string cannot fail.
            let _ = write!(text, "{value:0width$}");
            text
        };
        let month = MONTHS[usize::from(self.month) - 1];
        Some(match directive {
            'Y' => padded(self.year.into(), 4),
            'y' => padded(u32::from(self.year) % 100, 2),
            'm' => padded(self.month.into(), 2),
            'd' => padded(self.day.into(), 2),
            'e' => format!("{:2}", self.day),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'A' => DAYS[self.weekday()].to_owned(),
            'a' => DAYS[self.weekday()][..3].to_owned(),
            'j' => padded(self.day_of_year(), 3),
            'H' => padded(hour, 2),
            'I' => padded((hour + 11) % 12 + 1, 2),
            'M' => padded(self.seconds / 60 % 60, 2),
            'S' => padded(self.seconds % 60, 2),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

fn is_leap(year: u16) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn year_days(year: u16) -> u16 {
    if is_leap(year) { 366 } else { 365 }
}

fn month_days(year: u16, month: u8) -> u8 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}
